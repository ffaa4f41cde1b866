"""Sharded checkpoints by torch.distributed.checkpoint's protocol, readable by any plan of the same model.

Each parameter has one key, whatever the plan. Files hold plain bytes with checksums, never a pickle. A folder gets its
name as the last act of a save. docs/checkpoints.md has the format.

Modules, each importing only those before it:

    index          what lies where
    bytes          tensors written and read as bytes, with checksums
    plain_values   plain values as JSON
    keys           what a checkpoint calls a tensor
    state_json     state.json: its format, others refused
    groups         the optimizer's groups by parameter name
    plain_state    scaler, schedule and groups, restored
    compatibility  refuses another model's checkpoint
    compressed     what compression keeps, taken up
    folders        folders put in place and removed
    store          files for DCP; resharding: a load takes the boxes that overlap a rank's, whatever plan wrote them
    lock           one run at a time saves
    saving         saves in order, also in the background
    checkpoint     save and load
"""
