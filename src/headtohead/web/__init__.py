"""The local web app (extra `serve`): watch, start and stop experiments, view attention, generate text.

server, app          uvicorn and the FastAPI application
request_guard        host, token, origin and size checks before any other code;  timeout_protocol  slow clients
site                 templates, static files and navigation
experiment_folders   lookup of experiments and their files below the runs folder
settings_form, estimates    the form of a recipe and its estimated cost
training_process, resume    training in processes that outlive the server
live/                the state of running experiments, streamed as server-sent events
models/              models in a child process with torch
pages/               one module per page, and the JSON API
"""
