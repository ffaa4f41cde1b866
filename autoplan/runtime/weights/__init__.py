"""Weights into a rank's parts and out again: safetensors files, state dicts, start values.

Each rank reads only the bytes of its own slices. docs/weights.md says how files are checked.

Order: `tensor_files` (safetensors by boxes), `safetensors_files` (the files that a path stands for), `weight_names` (a
parameter's names in files), `experts` (experts stored one by one), `manifest` (checksums of saved weights), `checks`
(files and values checked), `loading` (into a rank's parts), `weights_folder` (the folder saved into), `writing` (out
again), `start_values` (values stored with a plan), `starting` (where training starts).
"""
