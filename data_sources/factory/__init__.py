"""Tasks from packages: their code with faults, the code of one release under the tests of the next, what agents wrote.

Here candidates are made; `launch/factory` runs their tests and keeps what proves itself.
"""
