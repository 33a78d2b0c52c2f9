"""Workers placed, restarted and replaced by Ray (extra `ray`), behind the interface of `cluster.launcher`.

Belongs here: the actor that owns one worker process on its host (`actor`, `seats`), which hosts they get (`places`,
`shortage`), one life as seen from the coordinator (`life`), the launcher over them (`launcher`), the connection to
Ray (`session`), and the detached server on the head (`head`). Ray is asked to place, restart and replace, and to
carry a few words about it. Does not belong here: anything that a request touches, since rows travel between router
and workers over gRPC alone.

Nothing but these modules imports Ray, and nothing imports them unless Ray is asked for.
"""
