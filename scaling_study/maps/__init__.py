"""Class-activation maps of a training's best model, and whether they show the instrument: `scaling-study maps RUN`.

best.pt --evaluate.restored--> model --scored.py--> maps of each test frame, scores, pictures
                                                                          records/maps.py --> <trial>/maps/
"""
