"""What figures and pages are made with; nothing here knows one of them."""
