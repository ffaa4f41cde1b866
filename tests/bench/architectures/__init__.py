"""Architectures: models of transformers, built small from their configurations, under several parallelisms.

Each is traced on the meta device, planned for ``1x4 cpu``, exported to a folder, loaded from it by four ranks and held
to the user's module on one device: in float64 on local processes, in float32 under torchrun. ``make zoo`` prints the
table and writes ``docs/appendix/models.md``.
"""
