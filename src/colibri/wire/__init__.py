"""The data plane's messages: ordinary protobuf (protos/colibri/v1/expert.proto), written by appending, read by
scanning.

Belongs here: headers, frames, checksums, chunks, the limits that follow from a model, and checks of what a message
claims. Does not belong here: moving bytes (colibri.transport), what a worker or router does with a message.
"""
