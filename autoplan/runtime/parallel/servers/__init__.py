"""Parameter servers: gradients pushed to the ranks that have parameters, new values pulled from there.

Modules, each importing only those before it:

    backups           workers whose gradients a step doesn't wait for
    deliveries        new values for workers that may be late, or gone
    parameter_server  pushes, updates and pulls
"""
