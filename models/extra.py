import jinja2
