"""Models and inputs by name: a Python file, a transformers configuration, or a `save_pretrained` folder.

Nothing is downloaded. Models of transformers are built on the meta device.

Order: `inputs` (the global batch of one step), `presets` (public configurations by
name), `huggingface` (transformers' models by name), `saved` (saved folders),
`pretrained` (what came with a model beside its weights), `named` (the model that ``--model`` names).
"""
