"""The command line, the topmost layer: reads checkpoints, starts services, prints."""
