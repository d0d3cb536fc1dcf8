"""The presentation model (`Table`, `Chart` and `Section`) and its renderers, shared by all reports. Imports no torch.

table, chart, section      what a report consists of
renderers                  one module per output format
chart_renderer             a child process that turns Vega-Lite charts into images
output_files               writes documents, tables and charts in the requested formats
picture_files, file_names  writes one picture; file names of tables and charts
number_format, style       how numbers are formatted, and colors and shapes in charts
command_line               command lines as users type them
"""
