"""Worker processes on a network of their own, on one machine: a namespace each, links that can be cut and made
worse.

Belongs here: making and removing it (`build`), the two ways to carry its packets (`bridged`: the kernel's own
bridge, and netem where the kernel has it; `relayed`: a small process that carries every packet between TUN
devices, for kernels without netem). Needs root.
"""
