"""The CUDA backend: `.cu` sources compiled by NVRTC, launched through CuPy.

Belongs here: kernels (source/), their compiler and its cache, GPU memory and copies to it, the launches behind the API
of colibri.kernels.api. Does not belong here: other parts of Colibri; anything that needs a GPU, a driver or CuPy when
it is imported: only colibri.kernels.cuda.cupy_device does, and only when a device is opened.
"""
