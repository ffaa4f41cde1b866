"""The kill test: ranks of a training are killed at random moments, saves included, and nothing of it shows in the end.

A small GPT-2 with dropout trains under ``torchrun --nproc-per-node 4 --max-restarts``, under each of three plans. Time
and again one rank of the four gets SIGKILL: somewhere in its start, some steps later, or in the middle of a save.
torchrun starts all again, train.py goes on from the latest checkpoint. After each kill that checkpoint is read whole;
at the end every tensor of the last one (parameters, optimizer state, random state) and every line of the metrics equal
those of a training that nobody disturbed, bit for bit.

With ``--two-jobs`` two such trainings are pointed at one folder by mistake. One holds the folder's lock, the other is
refused at its first save, and restarted by its torchrun; a kill of the first rank hands the lock to whoever comes next.
Kills begin when one of the two has been told of the other: these trainings are long enough for both to arrive.

    python -m tests.kill [--times 50] [--two-jobs 20] [--seed N] [--plan NAME] [--keep FOLDER]
"""
