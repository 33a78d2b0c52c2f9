"""What `colibri doctor` looks at: one module per area, each a function from a `Machine` to findings.

Belongs here: reading the machine and judging it for Colibri, with the command that mends it. Does not belong
here: how findings are printed, and anything that changes the machine.
"""
