"""Start, hang and restart: processes find one another, name who is behind, and end so that torchrun restarts them.

Modules, each importing only those before it:

    stderr_messages  errors and notes on stderr
    rendezvous       processes of one start find one another
    hang_report      names who hangs
    watchdog         ends a world that hangs
    stop_request     SIGTERM, heard by all ranks alike
    launch           starts and ends the world
    scaled_batch     a batch that follows the number of ranks
    world_size       a plan for as many processes as there are
"""
