"""The engine process: one thread that plans a step, runs it and applies what came back.

It sees token ids only. Text, templates and HTTP live in the API process; the two share nothing but `forgelm.ipc`.
"""
