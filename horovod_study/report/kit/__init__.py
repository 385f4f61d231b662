"""What figures and pages are made with, style and files; nothing here knows one of them."""
