// One line a model, in the order of `demi train --help`. MODEL(gpt): gpt_model() of its source
// makes the entry. No include guard: each includer defines MODEL, and reads the list anew.
MODEL(fashion_cnn)
MODEL(simple_cnn)
MODEL(resnet18)
MODEL(resnet50)
MODEL(resnet50_imagenet)
MODEL(vgg19)
MODEL(mlp)
MODEL(lstm)
MODEL(gpt)
