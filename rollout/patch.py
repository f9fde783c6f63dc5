def make_patch(a,b): return ""
