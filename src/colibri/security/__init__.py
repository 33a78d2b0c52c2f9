"""Who may reach what: certificates, bearer tokens, and the addresses on which servers may listen.

Belongs here: what a server demands of its callers (`server`, `access`, `tokens`, `roles`, `bind`), what a caller
shows and demands (`channel`), the files both read (`certificate`, `server_certificates`, `secret_file`), what strangers
may be told (`public_text`), and the private CA (`authority`, the only user of the package cryptography).

Does not belong here: gRPC servers and services themselves, and why a call failed (`colibri.rpc`).
"""
