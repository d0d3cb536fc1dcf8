"""The local web app: watch experiments, start them, look and play. FastAPI and uvicorn, the extra `serve`.

app          the whole application;  running  the server around it
guard        who may ask what: host, token, origin, sizes, how many at once;  connections  slow and silent clients
folders      which experiments lie below RUNS, and which files of theirs may be read
live         the state of an experiment, from its files;  watching  one watcher for all who look, server-sent events
helper       a child process for what is slow: charts and verdicts
training     start, stop, resume and add seeds, in processes that outlive the server;  resuming  such a process
catalog      which models there are;  models  the child process that holds them, seen from the server
model_process  that child: requests in turns;  model_work  what it does: maps, what may come next, texts
form         the form of a recipe, from the JSON schema;  estimating  what it would cost
site         templates, static files and the navigation;  pages/  one file a page, and the API
"""
