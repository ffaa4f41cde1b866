"""Models as people bring them, from libraries and hand-written: ``make zoo-wide`` writes docs/appendix/models_wide.md.

Each is small, has random weights, and is planned for ``1x4 cpu`` under four parallelisms; four local ranks run the
exported program, which is held to the module on one device in float64, as ``make zoo`` does.

model     what a model of the table is: a maker of the module, its batch and its loss
catalog   all of them by name; a module each for diffusion, images, sound, several inputs, language, adapters, graphs
cells     one model: whether torch.export traces it, each plan, its verification, what keeps it from being planned
split     the share of a plan's FLOPs that the tensor axis splits
kept      what was found by the same sources, so that a run that was cut off goes on
document  the table
"""
