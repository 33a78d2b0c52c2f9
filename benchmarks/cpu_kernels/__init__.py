"""`make reach TOPIC=cpu-kernels`: kernels, layers and whole models against the machine's limits and peers."""
