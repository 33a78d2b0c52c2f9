"""Run other people's programs, each in a process that the kernel bounds.

A chat template is a program, and so are a tokenizer's regular expressions. Both come with the checkpoint, and the
sender of a text decides how much work they do. A thread cannot be bounded in time or memory; a process can.

`process` is the parent's side, `child` the other one. `chat_child` and `tokenizer_child` are the programs;
`template`, `token_size` and `text_rules` belong to them alone. Nothing else imports these (import-linter checks
that), so no path renders a template or encodes a text without bounds.
"""
