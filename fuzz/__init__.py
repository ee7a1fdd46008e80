"""Random programs against the promise: what echo trains is what stock MXNet trains.

`fuzz.symbols` draws symbol graphs, `fuzz.blocks` Gluon blocks, `fuzz.files` damaged plan and cache files, and
`fuzz.options` the options they are planned with. ``python -m fuzz --minutes 3`` (``make fuzz MINUTES=3``) runs them.
"""
