"""The local web app (extra `serve`): watch, start and stop experiments, view attention, generate text.

server, app                 uvicorn and the FastAPI application
request_guard               host, token, origin and size checks before any other code
timeout_protocol            HTTP with timeouts for slow clients
site                        shared by all pages: templates, submitted forms, static files and navigation
experiment_folders          names and folders of experiments, and the files in them
settings_form, estimates    a recipe's settings form and its estimated cost
training_process            starts, finds and stops the processes that train; they outlive the server
resume_entrypoint           the program that a resumed training process runs
live/                       the live state of running experiments, streamed as server-sent events
models/                     models, loaded in a child process that imports torch
pages/                      one module per page, and the JSON API
"""
