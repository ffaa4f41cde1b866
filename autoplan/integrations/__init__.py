"""A plan inside of other libraries' training loops: transformers' Trainer, and loops of Accelerate.

The loop stays theirs: data, callbacks, logging, evaluation, saving. Forward, backward, gradient sums and the update are
the program's. What such a loop asks for and a program can't give is refused with its name, or told on stderr.

Order: `adapters` (how those of peft are saved), `left_out` (what a program doesn't do), `program_model` (what the loop
takes for its model), `program_optimizer` (what it takes for its optimizer), `data_rows` (each data rank's rows of its
loader's batches), `accelerate` (an Accelerator), `arguments` (what TrainingArguments may ask for), `transformers` (a
Trainer). The last three import the library of their name.
"""
