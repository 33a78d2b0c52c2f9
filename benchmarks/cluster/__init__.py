"""The Reach table of the cluster: hosts that are brought up, lost and taken down, experts placed on them, and what the
protection of the planes between them costs."""
