"""Steer a prompt from Python: one wish, two at once, and the same inside transformers' own generate."""

import slalom

lm = slalom.load()

out = lm.steer("The food was", slalom.Sentiment("positive"), seed=0)
print("positive:         ", out.rows[0].prompt + out.texts[0], f"(score {out.scores[0]:.2f})")

both = slalom.Sentiment("negative") + 0.5 * slalom.Keywords(["soup"])
out = lm.steer("The food was", both, samples=2, seed=0)
for row in out.rows:
    print("negative with soup:", row.prompt + row.text, {wish.name: wish.satisfied for wish in row.constraints})

inputs = lm.tokenizer(["The movie"], return_tensors="pt")
steering = slalom.custom_generate(slalom.Sentiment("negative"), lm.tokenizer, seed=1)
tokens = lm.model.generate(**inputs, custom_generate=steering, max_new_tokens=20)
print("inside generate:  ", lm.tokenizer.decode(tokens[0], skip_special_tokens=True))
