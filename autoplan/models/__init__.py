"""Models and inputs by name: a Python file, transformers' configurations, a save_pretrained folder."""
