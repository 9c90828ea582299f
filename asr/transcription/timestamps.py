"""TODO: timestamps."""




_FRAMES_PER_STEP = 4  # of the front end
