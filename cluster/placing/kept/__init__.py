"""What an operator decided, kept between two lives of a server.

Belongs here: the decisions as text (`state`, pure), storing one text (`store`), reading it at the start of a server
and writing each change (`keeping`).

Does not belong here: what the decisions mean (`colibri.cluster.placing.desired`).
"""
