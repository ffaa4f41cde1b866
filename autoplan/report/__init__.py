"""A plan in words: what was chosen, why, and what else was priced.

A report reads a plan's data alone, so a loaded plan prints the report that it printed when it was made.

Modules, each importing only those before it:

    words             quantities, layouts, parallelisms
    table             plain-text tables
    start             where training starts
    device_kinds      clusters of several devices
    experts           tokens and experts
    embedding_tables  tables that are placed
    waits             what a device waits for
    idle_options      what was asked for without effect
    kept_out          why a quicker plan isn't the one chosen
    notes             why the plan is as it is
    price_tables      memory, collectives, alternatives, the search
    program_tables    blocks with their layouts
    text_report       the whole report
    screen            the default report, of one screen
    html              a page of charts
    explain           answers of plan.explain
"""
