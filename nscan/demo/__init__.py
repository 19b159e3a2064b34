"""The main job, ``python -m nscan``: a character language model trained on a novel.

`text` cuts the novel into lanes, `model` holds the LSTM and its loss, `train` the optimiser and its loop,
`report` what is measured and drawn, `command` the command line.
"""
