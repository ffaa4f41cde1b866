"""Training over the stages of a pipeline: who runs what when, what is sent, and what is held meanwhile.

A rank holds what is in flight and no more: a message gets its buffer one action before it is read, a stage's result
goes as soon as the next stage has it, and of a forward stays what its backward reads.

Order: `order` (a rank's actions, by schedule), `stage_messages` (messages between stages), `split_backward` (a backward
in two halves), `stage` (forward and backward of one microbatch on one stage).
"""
