"""A typed program becomes the text of program.py: one `nn.Module` class for each distinct block and stage.

Each tensor has a comment with its local shape and layout, each collective one with its bytes. `templates/` holds
train.py and run.py, which the user may edit.

Modules, each importing only those before it:

    size_names        literals that follow the inputs' sizes
    source            identifiers, literals, comments
    spelling          an operator as Python
    unmoved_values    values that are another
    random_arguments  arguments of random operators
    calls             operators that share a line, or have several
    naming            names that are free
    readable          names for local variables
    program_notes     comments: what lines don't show
    block             a block's class, its collectives among its lines
    stage_classes     a stage's class
    program_text      the whole file
    sized_program     the file, with sizes read off its inputs
"""
