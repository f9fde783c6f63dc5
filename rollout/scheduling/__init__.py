"""Decide which groups of episodes are begun, trained, dropped, retried or given back, without I/O or a clock.

A *group* is the episodes of one task that share a baseline. What drives a scheduler (`Scheduler`) tells it what has
begun and ended, and asks it how many to begin and which to train.

| schedule | scheduler | what happens to groups that are not finished when a batch is full |
| --- | --- | --- |
| `sync` | `schedulers.DynamicSampling` | they are given back, and sampled anew under the next weights |
| `carry` | `schedulers.PacedAdmission` | they wait, and go on under the next weights |
| `continuous` | `schedulers.PacedAdmission` | they never wait |
"""
