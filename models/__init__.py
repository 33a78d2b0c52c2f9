"""What a checkpoint is: configuration, tensor names, tokenizer, chat template, reading and writing of Hugging
Face folders.

Belongs here: everything that turns files into checked configurations and NumPy arrays (`config`,
`generation_config`, `safetensors_file`, `checkpoint`, `tokenizer`, `chat`), packs of them (`packs`), processes that
confine what strangers wrote (`confined`), opening whichever a location names (`model`), and the makers of the models
that the project ships with: the demo model from real weights (`demo_model`) and random Mixtrals for tests and
benchmarks (`random_mixtral`).

Does not belong here: mathematics on weights (`colibri.kernels`), where experts live
(`colibri.expert_service`).

Arrays keep the checkpoint's own dtype. NumPy has no bfloat16, so in the whole project bf16 is carried as
`uint16` bit patterns, fp16 as `float16` and fp32 as `float32`; see `dtypes`.
"""
