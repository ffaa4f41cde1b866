"""Weights into a rank's parts and out again: safetensors files, state dicts, start values.

Each rank reads only the bytes of its own slices. docs/weights.md says how files are checked.

Modules, each importing only those before it:

    tensor_files       safetensors, read by boxes
    safetensors_files  the files that a path stands for
    weight_names       a parameter's names in files
    experts            experts stored one by one
    manifest           checksums of saved weights
    checks             files and values checked
    loading            a file's values into a rank's parts
    weights_folder     the folder saved into
    writing            a rank's parts into files
    start_values       values stored with a plan
    starting           where training starts
"""
