"""What a new user does in an empty folder, with the README alone: planned, seen, exported, trained, evaluated, brought
back. An own model in the manner of nanoGPT, a folder of transformers, transformers' Trainer.

Order: `journey` (steps, each a command whose words are looked at), `journeys` (the three), `__main__` (the command).
Folders hold the scripts that the user writes.
"""
