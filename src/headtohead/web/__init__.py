"""The local web app (extra `serve`): watch, start and stop experiments, view attention, generate text.

server, app          uvicorn and the FastAPI application
request_guard        host, token, origin and size checks before any other code;  timeout_protocol  slow clients
site                 templates, static files and navigation
experiment_folders   finds experiments and their files in the runs folder
settings_form, estimates    a recipe's settings form and its estimated cost
training_process, resume    training in processes that outlive the server
live/                the live state of running experiments, streamed as server-sent events
models/              models, loaded in a child process that imports torch
pages/               one module per page, and the JSON API
"""
