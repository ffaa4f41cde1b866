"""A transformer's training step in closed form, from the cost functions that price plans: time, bytes, throughput.

``model`` is the vocabulary, ``layer`` the operators of a layer, ``step`` the time of a step, ``memory`` its bytes.
"""
