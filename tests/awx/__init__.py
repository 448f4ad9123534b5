"""An automation controller as far as this repository notices one: how AWX lists playbooks, syncs a project, starts a
job, and answers its API. It shares no code with AWX; each file says where in AWX what it repeats is to be read.
"""
