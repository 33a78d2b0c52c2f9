"""Workers placed on hosts by Ray (extra `ray`), as `colibri.cluster.workers.launcher` sees them; what keeps a head up.

Belongs here: a worker's parent on its host (`minder`, `record`, `seats`), the actor that starts and finds it (`actor`),
which hosts workers get (`placement_groups`, `shortage`), Ray's client as a process of its own and the coordinator's
side of it (`driver`, `bridge`), one life as seen from the coordinator (`life`), the launcher over them (`launcher`,
`state`), the connection to Ray (`session`), the keepers of the head (`keeper`, `keep_server`, `keep_head`), and the
times that follow from Ray's health checks (`times`). Ray is asked to place, and carries a few words about it; nothing
that serves is a process of Ray. Does not belong here: anything that a request touches, since rows travel between router
and workers over gRPC alone.

Nothing but these modules imports Ray, and nothing imports them unless Ray is asked for.
"""
