"""Seconds and bytes: what hardware costs, without a graph, a layout or torch.

``hardware`` is what there is to run on, ``compute`` an operator's time, ``collective`` a collective's, ``memory`` the
bytes held, ``pipeline`` a schedule's timeline. Import the module you need.
"""
