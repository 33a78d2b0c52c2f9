"""What Python programs start and ask in their own process: `from colibri import Colibri`.

Belongs here: the class `Colibri`, its streams, and the thread that keeps its deployment. Does not belong here: how a
deployment is put together (`colibri.deployment`), and clients of a server that runs elsewhere (`colibri.client`).
"""
