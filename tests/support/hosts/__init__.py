"""Hosts on one machine: a network, process, mount, UTS and IPC namespace each, with an sshd of its own."""
