"""Measure this machine and write its profile: ``torchrun … -m cost_models.calibrate --out mine.toml``.

Modules, each importing only those before it:

    cases        what is measured, and the cost models' own prediction for it, without torch
    sizes        the shapes and sizes of a calibration
    fit          least squares: the figures under which predictions meet measurements
    fit_device   a device's figures
    fit_links    the links' figures
    operators    operators, ready to be timed
    collectives  collectives, ready to be timed
    world        the processes that torchrun started
    measure      times each case on all ranks at once
    overlap      what collectives and processes take from one another
    bursts       what a link lets through at once after a pause
    report       the errors of the fit, and every point
    write        the profile as a file
"""
