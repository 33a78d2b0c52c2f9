"""The version of this build, told by every server and by `colibri --version`."""

__version__ = "0.1.0"
