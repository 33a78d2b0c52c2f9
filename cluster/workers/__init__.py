"""Workers over all their lives: started or attached to, loaded, published, watched, mended, started anew.

Belongs here: the launcher (`launcher`; its options and states in `launch`), one supervisor per worker
(`worker_supervisor`), one life of a worker (`life`) as a child process of this machine (`local`, `worker_process`,
`run_folder`), workers that somebody else started (`attached`), the calls that load and ask a worker (`expert_calls`),
whether it answers (`answering`), whether it holds what it should (`worker_state`) and what is done where it does not
(`mending`, `remedies`), and publishing who is alive (`membership`).

Does not belong here: which experts a worker should hold (`colibri.cluster.placing`), and workers that Ray starts
(`colibri.cluster.ray`).
"""
