"""Programs of strangers, each in a process that the kernel bounds.

A chat template is a program, and so are the regular expressions of a tokenizer: both come with the checkpoint, and
what they cost is sized by whoever sends a text. No thread can be bounded in time or memory, a process can.

`process` is the parent's side, `child` the other one. `chat_child` and `tokenizer_child` are the programs;
`template`, `token_size` and `text_rules` are theirs alone. Nothing else imports these (import-linter holds that), so
no path renders a template or encodes a text without the bounds.
"""
